"""The demo: twenty silos with handwritten digits, five groups that label the same pictures differently."""

METHODS = ("separate", "fedavg", "fedamp", "heurfedamp", "groups")
SETTINGS = {"data": {"name": "digits", "split": "relabelled"}}
