"""A module that needs a package that is not installed."""

import a_package_nobody_has  # noqa: F401
