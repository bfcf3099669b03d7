"""Base of vision-language-action policies that denoise actions by flow matching, in LeRobot's layout."""
