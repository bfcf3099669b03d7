"""The ``embodyflow`` command, one module per subcommand."""
