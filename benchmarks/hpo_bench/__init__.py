"""Parts of benchmarks/hpo.py: the same search by the product, by Optuna and by Ray Tune, and regrets on tables."""
