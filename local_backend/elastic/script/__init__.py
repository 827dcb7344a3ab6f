"""What the user's script defines, and its transfer to workers."""
