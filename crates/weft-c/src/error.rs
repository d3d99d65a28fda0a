//! Errors: a negative errno to the caller, and a message that is kept per thread. The function that
//! returns it is not `unsafe` to call; it has no mangled name, which the compiler counts as such.

use std::any::Any;
use std::cell::RefCell;
use std::ffi::{c_char, c_int, CStr, CString};
use std::panic::{catch_unwind, AssertUnwindSafe};

thread_local! {
    static MESSAGE: RefCell<CString> = RefCell::new(CString::default());
}

/// The reason why a call failed.
pub(crate) struct Failure {
    errno: c_int,
    message: String,
}

pub(crate) type Result<T> = std::result::Result<T, Failure>;

impl Failure {
    pub fn new(errno: c_int, message: impl Into<String>) -> Self {
        Self { errno, message: message.into() }
    }

    pub fn invalid(message: impl Into<String>) -> Self {
        Self::new(libc::EINVAL, message)
    }
}

impl From<weft::Error> for Failure {
    fn from(e: weft::Error) -> Self {
        Self::new(e.errno(), e.to_string())
    }
}

/// Runs a call, and turns an error or a panic into what C gets.
pub(crate) fn answer(call: impl FnOnce() -> Result<i64>) -> i64 {
    // No state of this crate outlives the call; the rooms below have their own rules for panics.
    let failure = match catch_unwind(AssertUnwindSafe(call)) {
        Ok(Ok(value)) => return value,
        Ok(Err(failure)) => failure,
        Err(panic) => Failure::new(libc::ENOTRECOVERABLE, internal(&*panic)),
    };
    let text = failure.message.replace('\0', "\u{fffd}");
    // A thread that ends may have dropped its message: the number is left.
    let _ = MESSAGE.try_with(|message| {
        *message.borrow_mut() = CString::new(text).unwrap_or_default();
    });
    -i64::from(failure.errno.max(1))
}

/// As [`answer`], for calls whose results are small.
pub(crate) fn status(call: impl FnOnce() -> Result<c_int>) -> c_int {
    // Errnos and the results of `call` fit.
    answer(|| call().map(i64::from)) as c_int
}

/// As [`status`], for calls that return nothing but success.
pub(crate) fn done(call: impl FnOnce() -> Result<()>) -> c_int {
    status(|| call().map(|()| 0))
}

fn internal(panic: &(dyn Any + Send)) -> String {
    let text = panic.downcast_ref::<String>().map(String::as_str);
    let text = text.or_else(|| panic.downcast_ref::<&str>().copied());
    format!("internal error of weft: {}", text.unwrap_or("unknown"))
}

/// Returns what the last call of this thread that failed says about it: one line of UTF-8, never NULL.
/// It is valid until another call of this thread fails.
#[no_mangle]
pub extern "C" fn weft_error_message() -> *const c_char {
    let empty = <&CStr>::default().as_ptr();
    MESSAGE.try_with(|message| message.borrow().as_ptr()).unwrap_or(empty)
}

/// Returns the version of the library, such as "0.1.0". It is valid for ever.
#[no_mangle]
pub extern "C" fn weft_version() -> *const c_char {
    const VERSION: &str = concat!(env!("CARGO_PKG_VERSION"), "\0");
    CStr::from_bytes_with_nul(VERSION.as_bytes()).unwrap_or_default().as_ptr()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn panics_become_errors_with_a_message() {
        let got = done(|| panic!("the sky is {}", "green"));
        assert_eq!(got, -libc::ENOTRECOVERABLE);
        // SAFETY: the message is never NULL, and this thread makes no other call.
        let message = unsafe { CStr::from_ptr(weft_error_message()) }.to_str().unwrap();
        assert_eq!(message, "internal error of weft: the sky is green");
        assert_eq!(done(|| Err(Failure::new(0, "no number"))), -1);
        assert_eq!(answer(|| Ok(1 << 40)), 1 << 40);
    }
}
