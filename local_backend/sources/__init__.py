"""Connections and storage volumes as their users know them: by name, with who may use them."""
