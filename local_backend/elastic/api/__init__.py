"""The modules that training scripts import."""
