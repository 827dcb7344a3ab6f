"""What client and server must agree on: options, argument grammar, paths, field names, states, exit codes.

Nothing here does input or output; both sides may import all of it, and it imports nothing but the standard library.
"""
