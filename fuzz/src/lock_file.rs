//! Fuzzes the parser of lock files: no panic, and a lock that is written and read again is the
//! same.
#![no_main]

use libfuzzer_sys::fuzz_target;
use toolbooth_registry::lock::LockFile;

fuzz_target!(|bytes: &[u8]| {
    if let Ok(lock) = LockFile::parse(bytes) {
        assert_eq!(LockFile::parse(lock.to_text().as_bytes()).unwrap(), lock);
    }
});
