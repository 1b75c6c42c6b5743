"""What the subcommands of ``momatch`` do, one module each. Heavy imports happen when a command runs, not before."""
