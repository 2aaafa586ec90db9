"""Processes that share work: independent jobs, groups that train one model, and what several processes agree on."""
