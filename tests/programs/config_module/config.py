"""Values that the main script may change."""

HIDDEN = 8
SEED = 0
OPTIONS = {"lr": 0.01, "dropout": 0.0, "noise": 0.0, "smoothing": 0.1}
