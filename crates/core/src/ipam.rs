//! Which networks and addresses are given out.
