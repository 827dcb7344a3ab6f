"""Values that a command line does not give: profiles, files of options, and the source of each value."""
