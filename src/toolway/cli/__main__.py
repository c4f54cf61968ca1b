from toolway.cli import main

main()
