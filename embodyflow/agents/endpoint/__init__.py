"""An OpenAI-compatible server through which programs reach the model that a run trains."""
