"""What comes out of a trained model: predictions, evaluations, exported graphs."""
