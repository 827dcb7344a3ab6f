"""Parts of `benchmarks/elastic.py`: the stand-in for the runner, the other sides, and the analysis of time stamps."""
