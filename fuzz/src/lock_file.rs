//! Fuzzes the parser of lock files: no panic, and a lock that is written and read again is the
//! same.

use toolbooth_registry::lock::LockFile;

/// Runs the target on any bytes.
pub fn run(bytes: &[u8]) {
    if let Ok(lock) = LockFile::parse(bytes) {
        assert_eq!(LockFile::parse(lock.to_text().as_bytes()).unwrap(), lock);
    }
}
