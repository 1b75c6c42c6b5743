"""What a person sees while it works: progress, warnings, and how Ctrl-C is answered."""
