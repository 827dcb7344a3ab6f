"""The agreements of client and server: options, argument grammar, paths, field names, states, exit codes.

No module here does input or output, so both sides may import all of them. The modules import the standard library
alone; only `home` may import platformdirs.
"""
