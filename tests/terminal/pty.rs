//! A pseudo-terminal with one process in it, as a terminal emulator has its shell.

use std::fs::File;
use std::io::{Read, Write};
use std::os::fd::{FromRawFd, OwnedFd};
use std::os::unix::process::CommandExt;
use std::process::{Child, Command};
use std::sync::{Arc, Mutex};
use std::thread::JoinHandle;

use rustix::io::{FdFlags, fcntl_setfd};
use rustix::termios::{Termios, tcgetattr};

use crate::command::{until, wait};

/// Enters the alternate screen.
pub const ENTER: &str = "\x1b[?1049h";
/// Leaves it.
pub const LEAVE: &str = "\x1b[?1049l";
pub const SHOW_CURSOR: &str = "\x1b[?25h";

pub struct Pty {
    keyboard: File,
    /// The end that the process has, kept open so that its modes can be read.
    end: OwnedFd,
    found: Termios,
    output: Arc<Mutex<Vec<u8>>>,
    reader: JoinHandle<()>,
    child: Option<Child>,
    size: [usize; 2],
}

impl Pty {
    pub fn new(columns: u16, rows: u16) -> Self {
        let (mut outer, mut inner) = (-1, -1);
        let size = libc::winsize { ws_row: rows, ws_col: columns, ws_xpixel: 0, ws_ypixel: 0 };
        let none = std::ptr::null_mut();
        // SAFETY: the pointers are valid for the call; null stands for no name and for the usual modes.
        let code = unsafe {
            libc::openpty(&raw mut outer, &raw mut inner, none, std::ptr::null_mut(), &raw const size as *mut _)
        };
        assert_eq!(code, 0);
        // SAFETY: both were just opened and belong to nobody else.
        let (outer, end) = unsafe { (File::from_raw_fd(outer), OwnedFd::from_raw_fd(inner)) };
        // No process but the one that is started here may hold the terminal open.
        fcntl_setfd(&outer, FdFlags::CLOEXEC).and_then(|()| fcntl_setfd(&end, FdFlags::CLOEXEC)).unwrap();
        let output = Arc::new(Mutex::new(Vec::new()));
        let reader = std::thread::spawn({
            let (mut screen, output) = (outer.try_clone().unwrap(), output.clone());
            move || {
                let mut chunk = [0; 4096];
                // An error is the end: nobody has the other side open any more.
                while let Ok(length @ 1..) = screen.read(&mut chunk) {
                    output.lock().unwrap().extend_from_slice(&chunk[..length]);
                }
            }
        });
        Self {
            keyboard: outer,
            found: tcgetattr(&end).unwrap(),
            end,
            output,
            reader,
            child: None,
            size: [columns, rows].map(usize::from),
        }
    }

    /// Starts a command whose terminal this is.
    pub fn start(&mut self, mut command: Command) {
        let end = || self.end.try_clone().unwrap();
        command.stdin(end()).stdout(end()).stderr(end());
        if !command.get_envs().any(|(name, _)| name == "TERM") {
            command.env("TERM", "xterm-256color");
        }
        let adopt = || {
            // SAFETY: both are plain system calls, which are allowed between fork and exec.
            let done = unsafe { libc::setsid() != -1 && libc::ioctl(0, libc::TIOCSCTTY, 0) != -1 };
            if done { Ok(()) } else { Err(std::io::Error::last_os_error()) }
        };
        // SAFETY: `adopt` allocates nothing and takes no lock.
        unsafe { command.pre_exec(adopt) };
        self.child = Some(command.spawn().unwrap());
    }

    pub fn press(&mut self, keys: &[u8]) {
        self.keyboard.write_all(keys).unwrap();
    }

    pub fn signal(&self, number: i32) {
        let process = self.child.as_ref().unwrap().id() as libc::pid_t;
        // SAFETY: the process is a child that was not waited for.
        assert_eq!(unsafe { libc::kill(process, number) }, 0);
    }

    /// Waits for what has been printed, and what is on the screen, to be as wanted.
    #[track_caller]
    pub fn until(&mut self, wanted: impl Fn(&str, &str) -> bool) {
        until("the terminal shows what is wanted", || {
            let text = String::from_utf8_lossy(&self.output.lock().unwrap()).into_owned();
            let screen = screen(&text, self.size);
            let ended = self.child.as_mut().unwrap().try_wait().unwrap().is_some();
            let is_there = wanted(&text, &screen);
            assert!(is_there || !ended, "the process has ended, and the screen is\n{screen}");
            is_there
        });
    }

    /// Waits for the end of the process and returns its exit code.
    #[track_caller]
    pub fn wait(&mut self) -> Option<i32> {
        wait(self.child.as_mut().unwrap())
    }

    /// All that was printed, and whether the modes are those from before.
    pub fn close(self) -> (String, bool) {
        let modes = |it: &Termios| {
            (it.input_modes, it.output_modes, it.control_modes, it.local_modes, format!("{:?}", it.special_codes))
        };
        let is_restored = modes(&tcgetattr(&self.end).unwrap()) == modes(&self.found);
        drop(self.end);
        self.reader.join().unwrap();
        let text = String::from_utf8_lossy(&self.output.lock().unwrap()).into_owned();
        (text, is_restored)
    }
}

/// What `text` has written to a screen of so many columns and rows: the cursor moves to absolute places only, and every
/// character is one column wide.
fn screen(text: &str, [columns, rows]: [usize; 2]) -> String {
    let mut cells = vec![vec![' '; columns]; rows];
    let (mut row, mut column) = (0, 0);
    for piece in text.split("\x1b[").skip(1) {
        // The last one may not be whole yet.
        let Some(end) = piece.find(|c: char| c.is_ascii_alphabetic()) else { continue };
        if let (Some((line, place)), true) = (piece[..end].split_once(';'), piece[end..].starts_with('H')) {
            (row, column) = (line.parse::<usize>().unwrap() - 1, place.parse::<usize>().unwrap() - 1);
        }
        for character in piece[end + 1..].chars() {
            if let Some(cell) = cells.get_mut(row).and_then(|row| row.get_mut(column)) {
                *cell = character;
            }
            column += 1;
        }
    }
    cells.iter().map(|row| row.iter().collect::<String>() + "\n").collect()
}
