//! How errors are said.

use std::error::Error;

/// An error with its causes, on one line.
#[derive(Debug)]
pub struct Chain<'a, E: ?Sized>(pub &'a E);

impl<E: Error + ?Sized> std::fmt::Display for Chain<'_, E> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{}", self.0)?;
        let mut cause = self.0.source();
        let mut said = self.0.to_string();
        while let Some(error) = cause {
            let text = error.to_string();
            if !said.contains(&text) {
                write!(f, ": {text}")?;
            }
            said = text;
            cause = error.source();
        }
        Ok(())
    }
}
