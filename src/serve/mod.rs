//! The page of a run over HTTP, while it trains or afterwards.
//!
//! It reads the run's files and nothing else of it, in threads of its own: one that waits for viewers, and one for each
//! of them, up to a limit. All get the same page. So no number of viewers, however slow, holds up a step.

mod request;

use std::io::{self, Read, Write};
use std::net::{Shutdown, SocketAddr, TcpListener, TcpStream};
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use kiln_system::{Error, Result};
use parking_lot::Mutex;

pub use self::request::Action;
use self::request::{ACCEPTED, Access, Asked, BUSY, LATE, UNKNOWN, head, whole};
use crate::report::Followed;

/// The address if none is named.
pub const USUAL: &str = "127.0.0.1:8484";
/// Most viewers at a time.
const MOST: usize = 256;
/// How long a request may take to arrive, and a part of an answer to leave.
const PATIENCE: Duration = Duration::from_secs(5);
/// How often listeners look for news, and after how many looks they get a sign of life.
const TICK: (Duration, usize) = (Duration::from_millis(250), 60);
/// How long viewers, if there are any, may take the last page.
const FAREWELL: Duration = Duration::from_secs(1);

/// What the buttons of a page do.
pub type Act = Box<dyn Fn(Action) + Send + Sync>;

/// An address at which a page is going to be served.
pub struct Place {
    listener: TcpListener,
    address: SocketAddr,
    access: Access,
}

impl Place {
    /// Takes `address`; the token comes from the environment or is drawn. `other` is how to give another address.
    ///
    /// # Errors
    /// A usage error if the address cannot be taken, or for a token that could be guessed.
    pub fn take(address: SocketAddr, other: &str) -> Result<Self> {
        let access = Access::new(address.ip())?;
        let taken = TcpListener::bind(address).and_then(|listener| Ok((listener.local_addr()?, listener)));
        let (address, listener) = taken.map_err(|reason| {
            Error::usage(format!("cannot serve the page at {address}: {reason}; give another address, as in {other}"))
        })?;
        Ok(Self { listener, address, access })
    }

    /// Where a browser finds the page, with the token if it needs one, as for buttons.
    pub fn url(&self, has_buttons: bool) -> String {
        let machine = rustix::system::uname();
        let place = match self.address.ip().is_unspecified() {
            true => format!("{}:{}", machine.nodename().to_string_lossy(), self.address.port()),
            false => self.address.to_string(),
        };
        let needs_token = has_buttons || !self.access.is_open;
        let token = if needs_token { format!("?token={}", self.access.token) } else { String::new() };
        format!("http://{place}/{token}")
    }

    /// Serves the page of the run in `directory` until the server is dropped; without `act` it has no buttons. If it
    /// `moves`, another process may serve it afterwards, and viewers try again.
    ///
    /// # Errors
    /// [`Error::Data`] if `directory` holds no run, [`Error::Io`] if there can be no thread.
    pub fn serve(self, directory: &Path, act: Option<Act>, moves: bool) -> Result<Server> {
        let Self { listener, address, access } = self;
        let run = Mutex::new(Followed::new(directory, act.is_some())?);
        let shared = Arc::new(Shared { run, access, act, moves, has_ended: AtomicBool::default() });
        let served = shared.clone();
        let serve = move || {
            // Replicas go first. Elsewhere this would slow down the whole process.
            if cfg!(target_os = "linux") {
                let _ = rustix::process::setpriority_process(None, 10);
            }
            while !served.has_ended.load(Ordering::SeqCst) {
                served.admit(&listener);
            }
        };
        let thread = thread::Builder::new().name("page".into()).spawn(serve);
        thread.map(|_| Server { shared, address }).map_err(Error::io("serve the page of", directory))
    }
}

/// The page while it is served. When this is dropped, the viewers hear that they get the last state, and the address is
/// free again.
pub struct Server {
    shared: Arc<Shared>,
    address: SocketAddr,
}

impl Drop for Server {
    fn drop(&mut self) {
        self.shared.run.lock().hurry();
        self.shared.has_ended.store(true, Ordering::SeqCst);
        if self.shared.viewers() > 0 {
            thread::sleep(FAREWELL);
        }
        // Wakes the thread that waits for viewers.
        drop(TcpStream::connect_timeout(&self.address, TICK.0));
    }
}

struct Shared {
    run: Mutex<Followed>,
    access: Access,
    act: Option<Act>,
    moves: bool,
    has_ended: AtomicBool,
}

impl Shared {
    /// Each has a share, as have the server and the thread that waits.
    fn viewers(self: &Arc<Self>) -> usize {
        Arc::strong_count(self).saturating_sub(2)
    }

    /// Waits for a viewer and serves it in a thread.
    fn admit(self: &Arc<Self>, listener: &TcpListener) {
        let Ok((mut stream, _)) = listener.accept() else {
            // As without a free descriptor.
            return thread::sleep(TICK.0);
        };
        if self.viewers() >= MOST {
            return drop(stream.set_nonblocking(true).and_then(|()| stream.write(&whole(BUSY))));
        }
        let shared = self.clone();
        // A viewer that has gone is no error.
        let serve = move || drop(shared.serve(&mut stream));
        drop(thread::Builder::new().name("viewer".into()).spawn(serve));
    }

    fn serve(&self, stream: &mut TcpStream) -> io::Result<()> {
        stream.set_read_timeout(Some(PATIENCE))?;
        stream.set_write_timeout(Some(PATIENCE))?;
        let (mut request, mut length, late) = ([0; request::MOST], 0, Instant::now() + PATIENCE);
        let asked = loop {
            match request::read(&request[..length], &self.access) {
                Some(asked) => break asked,
                None if Instant::now() >= late => break Err(LATE),
                None => {}
            }
            match stream.read(&mut request[length..]) {
                Ok(0) => return Ok(()),
                Ok(more) => length += more,
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => break Err(LATE),
                Err(error) => return Err(error),
            }
        };
        let said = match (asked, &self.act) {
            (Ok(Asked::Events), _) => return self.events(stream),
            (Ok(Asked::Page), _) => {
                let page = self.run.lock().page();
                stream.write_all(head("200 OK", "text/html", Some(page.len())).as_bytes())?;
                return stream.write_all(page.as_bytes());
            }
            (Ok(Asked::Act(action)), Some(act)) => {
                act(action);
                ACCEPTED
            }
            (Ok(Asked::Act(_)), None) => UNKNOWN,
            (Err(refusal), _) => refusal,
        };
        stream.write_all(&whole(said))?;
        // The rest of a request that was refused would make the system throw the answer away.
        stream.shutdown(Shutdown::Write)?;
        stream.read(&mut request).map(drop)
    }

    /// Tells a listener when the page is another one, until the end.
    fn events(&self, stream: &mut TcpStream) -> io::Result<()> {
        stream.write_all(head("200 OK", "text/event-stream", None).as_bytes())?;
        let ((tick, silence), mut told, mut looks) = (TICK, None, 0_usize);
        while !self.has_ended.load(Ordering::SeqCst) {
            let state = self.run.lock().state();
            looks += 1;
            if told.replace(state) != Some(state) {
                stream.write_all(b"data: page\n\n")?;
            } else if looks.is_multiple_of(silence) {
                // Otherwise nobody would notice that the viewer has gone.
                stream.write_all(b":\n\n")?;
            }
            thread::sleep(tick);
        }
        stream.write_all(if self.moves { &b"data: page\n\n"[..] } else { b"event: end\ndata: page\n\n" })
    }
}
