"""What `benchmarks/elastic.py` measures with: the stand-in runner, the other sides, the reading of time stamps."""
