//! The text of an error with its causes.

use std::error::Error;

/// Displays an error and its causes on one line. A cause that the text before already contains is
/// left out.
#[derive(Debug)]
pub struct Chain<'a, E: ?Sized>(pub &'a E);

impl<E: Error + ?Sized> std::fmt::Display for Chain<'_, E> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{}", self.0)?;
        let mut cause = self.0.source();
        let mut last = self.0.to_string();
        while let Some(error) = cause {
            let text = error.to_string();
            if !last.contains(&text) {
                write!(f, ": {text}")?;
            }
            last = text;
            cause = error.source();
        }
        Ok(())
    }
}
