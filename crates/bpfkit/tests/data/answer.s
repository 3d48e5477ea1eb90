r0 = 42
exit
