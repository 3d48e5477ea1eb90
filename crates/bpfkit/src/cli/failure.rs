//! How a command ends other than well: one line for people, a number for scripts.

use std::fmt;
use std::process::ExitCode;

/// Exit codes, the same in every command (docs/README.md lists them for users).
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Exit {
    /// The program under test misbehaved: it faulted, or was rejected.
    Program = 1,
    /// The input or the command line is wrong.
    Input = 2,
    /// The machine said no: a write failed, or something optional is missing here.
    Machine = 3,
    /// Interrupted by Ctrl-C.
    Interrupted = 130,
}

/// The end of a command that did not go well.
#[derive(Debug)]
pub struct Failure {
    /// What went wrong, in one line without a final period.
    pub message: String,
    /// Exit code.
    pub exit: Exit,
}

impl Failure {
    /// Wrong input or command line.
    pub fn input(message: impl fmt::Display) -> Self {
        Failure {
            message: message.to_string(),
            exit: Exit::Input,
        }
    }

    /// The program under test faulted or was refused.
    pub fn program(message: impl fmt::Display) -> Self {
        Failure {
            message: message.to_string(),
            exit: Exit::Program,
        }
    }

    /// The machine refused.
    pub fn machine(message: impl fmt::Display) -> Self {
        Failure {
            message: message.to_string(),
            exit: Exit::Machine,
        }
    }

    /// Prints the message and gives the exit code.
    pub fn report(&self) -> ExitCode {
        if self.exit != Exit::Interrupted {
            anstream::eprintln!("\u{1b}[1;31merror:\u{1b}[0m {}", self.message);
        }
        ExitCode::from(self.exit as u8)
    }
}

/// Result of a command.
pub type Result<T = ()> = std::result::Result<T, Failure>;
