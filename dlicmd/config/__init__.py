"""What a command line leaves open: profiles, files of options, and where each value comes from."""
