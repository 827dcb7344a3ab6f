"""Connections and storage volumes by name, and the users who may use them."""
