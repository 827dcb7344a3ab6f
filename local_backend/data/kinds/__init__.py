"""The kinds of connections of this package. The registry finds them as it finds kinds of other packages: by the entry
points of setup.cfg."""
