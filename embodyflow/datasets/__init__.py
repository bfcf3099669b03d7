"""Data sets of demonstrations in local folders, read and written."""
