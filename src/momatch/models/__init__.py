"""Models: backbones, the classifier, what it says about images, and how it is saved."""
