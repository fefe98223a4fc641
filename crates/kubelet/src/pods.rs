//! Offloads pods, and brings their status back.
