//! The name under which programs find the shared library.

fn main() {
    println!("cargo:rerun-if-changed=build.rs");
    println!("cargo:rustc-cdylib-link-arg=-Wl,-soname,libdafs.so.0");
    // Its threads run until their sessions end: it stays when a program unloads it.
    println!("cargo:rustc-cdylib-link-arg=-Wl,-z,nodelete");
}
