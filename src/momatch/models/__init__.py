"""Models: backbones, the classifier, scoring, saving and loading."""
