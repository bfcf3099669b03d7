"""A small vision-language-action policy that trains in a minute on a laptop."""
