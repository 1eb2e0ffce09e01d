use tokio::sync::mpsc;

/// The lines that come in on stdin. A thread of its own reads them, which does not keep the process from ending as
/// tokio's stdin would.
#[must_use]
pub fn commands() -> mpsc::UnboundedReceiver<String> {
    let (sender, receiver) = mpsc::unbounded_channel();
    std::thread::spawn(move || {
        for line in std::io::stdin().lines().map_while(Result::ok) {
            let _ = sender.send(line);
        }
    });
    receiver
}
