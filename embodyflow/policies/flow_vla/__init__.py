"""What vision-language-action policies have in common whose actions are denoised by flow matching."""
