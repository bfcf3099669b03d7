"""Files that survive a power cut, and files and folders of one user alone."""
