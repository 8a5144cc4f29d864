//! NVML's results, by number and by name.

use std::ffi::CStr;

macro_rules! results {
    ($($variant:ident = $number:literal, $text:literal;)*) => {
        /// What an NVML function answers.
        #[derive(Clone, Copy, Debug, PartialEq, Eq)]
        #[repr(u32)]
        pub enum NvmlResult {
            $(#[doc = concat!("Number ", $number, ".")] $variant = $number,)*
        }

        impl NvmlResult {
            const ALL: &[Self] = &[$(Self::$variant,)*];

            /// What `nvmlErrorString` answers.
            pub fn text(self) -> &'static CStr {
                match self { $(Self::$variant => $text,)* }
            }

            fn name(self) -> &'static str {
                match self { $(Self::$variant => stringify!($variant),)* }
            }
        }
    };
}

results! {
    Success = 0, c"Success";
    Uninitialized = 1, c"Uninitialized";
    InvalidArgument = 2, c"Invalid Argument";
    NotSupported = 3, c"Not Supported";
    NoPermission = 4, c"Insufficient Permissions";
    AlreadyInitialized = 5, c"Already Initialized";
    NotFound = 6, c"Not Found";
    InsufficientSize = 7, c"Insufficient Size";
    InsufficientPower = 8, c"Insufficient External Power";
    DriverNotLoaded = 9, c"Driver Not Loaded";
    Timeout = 10, c"Timeout";
    IrqIssue = 11, c"Interrupt Request Issue";
    LibraryNotFound = 12, c"NVML Shared Library Not Found";
    FunctionNotFound = 13, c"Function Not Found";
    CorruptedInforom = 14, c"Corrupted infoROM";
    GpuIsLost = 15, c"GPU is lost";
    ResetRequired = 16, c"GPU requires reset";
    OperatingSystem = 17, c"GPU access blocked by the operating system";
    LibRmVersionMismatch = 18, c"Driver/library version mismatch";
    InUse = 19, c"In use by another client";
    Memory = 20, c"Insufficient Memory";
    NoData = 21, c"No data";
    InsufficientResources = 23, c"Insufficient Resources";
    FreqNotSupported = 24, c"Frequency Not Supported";
    ArgumentVersionMismatch = 25, c"Argument version mismatch";
    NotReady = 27, c"Not Ready";
    GpuNotFound = 28, c"GPU not found";
    InvalidState = 29, c"Invalid state";
    Unknown = 999, c"Unknown Error";
}

impl NvmlResult {
    /// NVML's number.
    pub fn number(self) -> u32 {
        self as u32
    }

    /// The result of a number; what has no name here is unknown.
    pub fn from_number(number: u32) -> Self {
        Self::ALL.iter().copied().find(|r| r.number() == number).unwrap_or(Self::Unknown)
    }

    /// Its name in the words of the command line: `gpu-is-lost`.
    pub fn kebab(self) -> String {
        let mut text = String::new();
        for letter in self.name().chars() {
            if letter.is_ascii_uppercase() && !text.is_empty() {
                text.push('-');
            }
            text.push(letter.to_ascii_lowercase());
        }
        text
    }

    /// The result of a name.
    pub fn from_kebab(text: &str) -> Option<Self> {
        Self::ALL.iter().copied().find(|result| result.kebab() == text)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_result_is_found_by_its_number_and_its_name() {
        for &result in NvmlResult::ALL {
            assert_eq!(NvmlResult::from_number(result.number()), result);
            assert_eq!(NvmlResult::from_kebab(&result.kebab()), Some(result));
        }
        assert_eq!(NvmlResult::from_number(77), NvmlResult::Unknown);
        assert_eq!(NvmlResult::GpuIsLost.kebab(), "gpu-is-lost");
    }
}
