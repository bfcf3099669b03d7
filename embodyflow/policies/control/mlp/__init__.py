"""What the policies of small MLPs share: sizes, layers, the critic, and the policy's parts without a distribution."""
