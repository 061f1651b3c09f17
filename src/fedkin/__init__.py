"""fedkin: personalised federated learning for silos."""
