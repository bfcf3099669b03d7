"""The generation engine that runs transformers models by itself, with continuous batching."""
