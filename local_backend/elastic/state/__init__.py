"""The state of a training: copied to workers that join, saved, restored and compared."""
