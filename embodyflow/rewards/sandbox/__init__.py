"""Sandbox of programs that a policy has written: processes without network, files or much memory."""
