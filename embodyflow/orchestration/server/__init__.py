"""What the Prefect server is told and asked, and what is left when it is away."""
