//! What of the home cluster is in the remote one, and what comes back.
