"""Tasks of environments of the package verifiers, which a process of their own loads."""
