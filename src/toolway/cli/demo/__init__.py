"""Demo for `toolway ui --demo`: a gateway with healthy and faulty servers and many calls."""
