//! Gives the shared library the name that programs linked with it look for, and hides what is not its
//! own: some dependencies have symbols for C. The number rises with every release that breaks the ABI.

fn main() {
    println!("cargo:rerun-if-changed=build.rs");
    println!("cargo:rustc-cdylib-link-arg=-Wl,-soname,libweft.so.0");
    println!("cargo:rustc-cdylib-link-arg=-Wl,--exclude-libs,ALL");
}
