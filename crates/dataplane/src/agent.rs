//! The overlay, routes and rules of one node.
