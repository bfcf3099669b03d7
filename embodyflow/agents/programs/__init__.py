"""Programs that play episodes in processes of their own and reach the model as an OpenAI-compatible server."""
